//! Mixture of experts: which experts the rows go to, which of them are active, and their products.
pub mod active;
pub mod combine;
pub mod route;
pub mod router;

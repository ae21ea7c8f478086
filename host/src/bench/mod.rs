//! `bench`: what is measured, how it is run and summarised, how it is compared and shown. Flags live in `cli::bench`.
//!
//! A **case** fixes everything but the way of drafting: prompts, context, length, temperature. Every **arm** (a mode and its
//! budget, `none` always among them) runs each case in turn with the others, repeat by repeat and prompt by prompt, so that
//! whatever else the machine does falls on all arms alike. A case and an arm make a **row**.

pub mod baseline;
pub mod ceiling;
mod csv;
pub mod matrix;
pub mod metrics;
pub mod plot;
pub mod prompts;
pub mod report;
pub mod row;
pub mod run;
pub mod stats;

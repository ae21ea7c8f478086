//! The deferred backend.

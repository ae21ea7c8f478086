//! Coppice: the engine.

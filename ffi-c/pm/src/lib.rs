//! The C ABI of PMv2.

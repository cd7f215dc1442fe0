"""What tests need: records, traces, kernels and calls, made for them."""

"""A warm judge: processes that have torch, triton and the suites loaded before they are asked."""

"""What commands are told: kernels and files, settings, the problem of a call, and usage errors."""

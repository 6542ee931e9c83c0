"""The host stage: the same experiment in real time, in the kernel at hand, as root."""

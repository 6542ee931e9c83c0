"""Many experiments: each run once, kept by what it is, on the processors here or on those of a cluster."""

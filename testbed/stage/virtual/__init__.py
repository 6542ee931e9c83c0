"""The virtual stage: User-Mode Linux in time travel."""

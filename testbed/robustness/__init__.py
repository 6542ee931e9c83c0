"""What becomes of a schedule where the world is not as its plan has it: disturbances, their grid, its table and picture."""

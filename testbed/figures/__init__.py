"""The paper's four figures: which cells each needs, its table, its picture."""

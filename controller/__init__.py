"""What a cluster would run: a demand matrix in, rates out, NICs programmed. Knows nothing of Mininet."""

__version__ = "0.1.0"

"""From records to figures and files."""

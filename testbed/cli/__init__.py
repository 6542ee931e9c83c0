"""The testbed's verbs of the ``incastfree`` command."""

"""The ``incastfree`` command: one file a verb. Other packages add verbs by entry point."""

"""Golden vectors: what one switch of the fabric does to packets, recorded from BMv2. README.md says what is in here."""

"""Why a run took as long as it did: the way of its last byte, from the records of all packets."""

"""The fluid theory of a collective: what round robin and rates do to queues when packets are infinitely small."""

"""What plays the cluster: topology, fabric, engine, stages, measurement, reports."""

"""An experiment is data: one set of keys, whether they come from a TOML file or from the command line."""

from __future__ import annotations

from testbed.experiment.definition import Background, DemandPhase, Experiment, LinkFailure, Run, plain
from testbed.experiment.keys import AUTO, BACKGROUND_KEYS, DEMAND_KEYS, DOCA_MODEL, FAILURE_KEYS, KEYS, Key
from testbed.experiment.mapping import from_mapping
from testbed.experiment.toml import read_toml, to_toml

__all__ = [
    "AUTO",
    "BACKGROUND_KEYS",
    "DEMAND_KEYS",
    "DOCA_MODEL",
    "FAILURE_KEYS",
    "KEYS",
    "Background",
    "DemandPhase",
    "Experiment",
    "Key",
    "LinkFailure",
    "Run",
    "from_mapping",
    "plain",
    "read_toml",
    "to_toml",
]

"""The configuration: all settings, from a YAML file and the environment, checked before anything starts."""

from tocsin.config.load import Loaded, load_config, merged
from tocsin.config.origins import Origin
from tocsin.config.partial import read_mapping
from tocsin.config.schema import Config

__all__ = ["Config", "Loaded", "Origin", "load_config", "merged", "read_mapping"]

"""PROCESSES: where rows and tokens meet. Engines in Ray actors."""

from actors.dataset_generator import generate
from actors.settings import ChatSettings, GeneratorSettings, ModelSettings

__all__ = ["ChatSettings", "GeneratorSettings", "ModelSettings", "generate"]

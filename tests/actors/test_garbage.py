"""What Python's collections of garbage look at in a process with an engine."""

import gc

from actors.engines.loading import LoadedEngine
from actors.settings import EngineSettings, GeneratorSettings, ModelSettings


def test_a_collection_passes_over_modules_and_looks_at_the_model():
    models = ModelSettings(target="examples/tiny_pair/target", device="cpu", dtype="float32")
    loaded = LoadedEngine(GeneratorSettings(models=models, engine=EngineSettings(num_slots=1)), None, 60.0)
    assert gc.get_freeze_count() > 100_000
    assert any(each is loaded.loop for each in gc.get_objects())

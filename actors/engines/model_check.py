"""What of an engine's models is checked in a driver: their files and configurations, and no network."""

from transformers import PretrainedConfig

from actors.settings import GeneratorSettings
from decoding.checkpoint.fp8_format import dtype_beside_fp8, fp8_format
from decoding.checkpoint.layer_subset import check_can_be_cut, cut, num_layers
from decoding.checkpoint.rank import check_can_be_sharded, check_device, check_exact_ranks
from decoding.checkpoint.supported import check_same_vocabulary, load_config, max_positions
from decoding.choices import NEED_A_MODEL, OWN_HEAD
from decoding.engine.options import settle_max_model_len
from decoding.families.family import FAMILIES
from decoding.heads.assistant_folder import fitting_assistant
from decoding.heads.fit import fitting_config
from decoding.heads.format.folder import is_assistant
from decoding.heads.mtp.files import own_head
from decoding.vocabulary.vocabulary_map import VocabularyMap


def check_models(settings: GeneratorSettings) -> None:
    """Check models and settings as the engine does when it loads weights, as far as possible without them."""
    models, engine = settings.models, settings.engine
    target_config = load_config(models.target)
    _check_dtype(target_config, models.dtype, models.target)
    _check_fused(settings, models.target)
    vocab_size: int = target_config.get_text_config().vocab_size
    settle_max_model_len(engine.max_model_len, max_positions(target_config))
    if settings.stages.is_apart:
        cut(num_layers(target_config), settings.stages.count)
        check_can_be_cut(target_config, models.target)
    if settings.stages.tensor_parallel > 1:
        check_can_be_sharded(target_config, models.target, settings.stages.tensor_parallel)
        if models.device == "cpu":  # this process cannot see the GPUs of other nodes
            check_device(models.device, settings.stages.tensor_parallel)
        if why := why_not_fused(models.target, models.device):
            check_exact_ranks(models.target, settings.stages.tensor_parallel, models.dtype, engine.exact, why)
    if models.draft is None and not models.candidates:
        engine.pick_drafter(None)  # refuses a drafter that needs a model
    elif models.draft == OWN_HEAD:
        own_head(models.target)
    elif models.draft is not None and engine.drafts_with_a_head(models.draft):
        if is_assistant(models.draft) and settings.stages.is_apart:
            raise ValueError(
                f"{settings.stages.asked_by} put the target into other processes, and models.draft ({models.draft}) is "
                "an assistant, which reads the keys of its target in the same one; leave them out, or use another draft"
            )
        fitting = fitting_assistant if is_assistant(models.draft) else fitting_config
        fitting(models.draft, target_config, models.target)
    elif models.draft is not None and engine.pick_drafter(models.draft) in NEED_A_MODEL:
        draft_config = load_config(models.draft)
        _check_dtype(draft_config, models.dtype, models.draft)
        _check_fused(settings, models.draft)
        draft_size: int = draft_config.get_text_config().vocab_size
        if models.draft_vocabulary == "map":
            VocabularyMap.between(models.target, models.draft, vocab_size, draft_size)
        else:
            check_same_vocabulary(models.target, models.draft, vocab_size, draft_size)


def why_not_fused(model: str, device: str) -> str:
    """Return why the layers of a model in this folder will not run fused, as far as its configuration says; or nothing.

    The engine measures those that will.
    """
    kind = load_config(model).model_type
    names = [name for name, family in FAMILIES.items() if device == "cpu" or family.runs_on_gpus]
    return "" if kind in names else f"{kind} is no family that runs fused on {device} (docs/models.md)"


def _check_fused(settings: GeneratorSettings, model: str) -> None:
    if why := why_not_fused(model, settings.models.device):
        settings.engine.refuse_slow(model, why)


def _check_dtype(config: PretrainedConfig, dtype: str, model: str) -> None:
    if fp8_format(config) is not None:
        dtype_beside_fp8(config, dtype, model)

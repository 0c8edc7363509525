"""Where a run computes: Accelerate's devices and processes, and the model made ready for them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs
from torch import nn

from vlplatform.engine.memory import keep_freed_memory
from vlplatform.engine.processes import on_cpu, this_device
from vlplatform.engine.settings import TrainerSettings
from vlplatform.errors import UserError


def accelerator_for(settings: TrainerSettings) -> Accelerator:
    """Devices and processes as Accelerate finds them, with this run's precision.

    Raises:
        UserError: The device cannot compute in this precision.
    """
    if this_device()[0].type == "cpu":
        keep_freed_memory()
    # 1×1 kernels of channels-last models have two equal layouts; DDP warns of the one it did not expect.
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    AcceleratorState._reset_state()  # an earlier run in this process may have had another precision
    mixed = {"fp32": "no"}.get(settings.precision, settings.precision)
    ddp = DistributedDataParallelKwargs(find_unused_parameters=settings.find_unused_parameters)
    if settings.precision == "fp16" and this_device()[0].type != "cuda":
        raise UserError("trainer.precision=fp16 needs a CUDA device: choose bf16 or fp32.")
    try:
        return Accelerator(cpu=on_cpu(), mixed_precision=mixed, kwargs_handlers=[ddp])
    except (ValueError, ImportError) as error:
        raise UserError(f"trainer.precision={settings.precision} is impossible here ({error}): choose fp32.") from error


def placed(
    model: nn.Module, settings: TrainerSettings, accelerator: Accelerator, say: Callable[[str], None]
) -> nn.Module:
    """The model on this process's device, in the layout asked for, its batch norms over all processes.

    Where the device cannot synchronise batch norms, that is said.
    """
    normed = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
    if settings.sync_batchnorm and normed and accelerator.num_processes > 1:
        if accelerator.device.type == "cuda":
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        else:
            say(
                "Batch norms take the statistics of each process's own share of the batch: "
                f"on {accelerator.device.type} they cannot be synchronised."
            )
    model.to(accelerator.device)
    if settings.channels_last:
        model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return model

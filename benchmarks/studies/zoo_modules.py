"""Twelve modules of real models, two of each kind. They were chosen before the playbook was tried on them.

Each entry makes a model in evaluation mode and its inputs, and names the block that is captured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Model = tuple[nn.Module, Any]  # and its inputs


@dataclass(frozen=True)
class Entry:
    """A block of a model: its kind, the model, and its name inside; empty for the model itself."""

    kind: str
    make: Callable[[], Model]
    block: str


def vit() -> Model:
    import timm

    return timm.create_model("vit_tiny_patch16_224", pretrained=False).eval(), (torch.randn(1, 3, 224, 224),)


def gpt2() -> Model:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_embd=256, n_head=4, vocab_size=2000)
    return GPT2LMHeadModel(config).eval(), {"input_ids": torch.randint(0, 2000, (2, 128))}


def bert() -> Model:
    from transformers import BertConfig, BertModel

    config = BertConfig(num_hidden_layers=2, hidden_size=256, intermediate_size=1024, num_attention_heads=4)
    return BertModel(config).eval(), {"input_ids": torch.randint(0, 2000, (2, 128))}


def llama() -> Model:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=256, intermediate_size=688, num_hidden_layers=2, num_attention_heads=4, vocab_size=2000
    )
    return LlamaModel(config).eval(), {"input_ids": torch.randint(0, 2000, (2, 128))}


def resnet() -> Model:
    import torchvision

    return torchvision.models.resnet18(weights=None).eval(), (torch.randn(1, 3, 224, 224),)


def convnext() -> Model:
    import torchvision

    return torchvision.models.convnext_tiny(weights=None).eval(), (torch.randn(1, 3, 224, 224),)


def soft_target_loss() -> Model:
    from timm.loss import SoftTargetCrossEntropy

    return SoftTargetCrossEntropy().eval(), (torch.randn(256, 1000), torch.rand(256, 1000))


def smoothing_loss() -> Model:
    from timm.loss import LabelSmoothingCrossEntropy

    return LabelSmoothingCrossEntropy(0.1).eval(), (torch.randn(256, 1000), torch.randint(0, 1000, (256,)))


ENTRIES = {
    "timm ViT attention": Entry("attention", vit, "blocks.0.attn"),
    "transformers BERT attention": Entry("attention", bert, "encoder.layer.0.attention"),
    "transformers GPT-2 MLP": Entry("MLP", gpt2, "transformer.h.0.mlp"),
    "transformers Llama MLP": Entry("MLP", llama, "layers.0.mlp"),
    "transformers Llama RMS norm": Entry("norm", llama, "norm"),
    "torchvision ConvNeXt layer norm": Entry("norm", convnext, "features.0.1"),
    "torchvision ResNet block": Entry("residual block", resnet, "layer2.0"),
    "torchvision ConvNeXt block": Entry("residual block", convnext, "features.1.0"),
    "transformers BERT embeddings": Entry("embedding head", bert, "embeddings"),
    "transformers GPT-2 head": Entry("embedding head", gpt2, "lm_head"),
    "timm soft-target loss": Entry("loss", soft_target_loss, ""),
    "timm label-smoothing loss": Entry("loss", smoothing_loss, ""),
}

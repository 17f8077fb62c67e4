"""Denoising networks and autoencoders of diffusers: `diffusers:NAME`, built from a configuration, with random weights."""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch
from placekit_torch import Step

from placekit_core import ImporterError, unknown
from placekit_models import configurations
from placekit_models.extras import library
from placekit_models.network import Mode, Network
from placekit_models.options import Asked

_PROMPT = {
    "SD3": 77 + 256, "PixArt": 300, "HunyuanVideo": 256, "LTX": 128, "Sana": 300, "Lumina2": 256, "Mochi": 256, "AuraFlow": 256,
}  # fmt: skip
"""Tokens of a prompt, as in the pipelines of diffusers, by the beginning of the class; elsewhere 512."""
_WIDTHS = [
    "joint_attention_dim",
    "caption_channels",
    "cross_attention_dim",
    "text_embed_dim",
    "text_dim",
    "cap_feat_dim",
]
"""Where a configuration says how wide a token of a prompt is."""
_VIDEO = (13, 60, 90)
"""Frames, height and width of a compressed video, as of CogVideoX: 49 frames of 480 x 720."""
_SEEN = 257
"""Tokens of a picture that CLIP's image encoder outputs: 16 x 16 patches and its class."""
_FRAMES = {
    "Allegro": 8, "Cosmos": 9, "HunyuanVideo": 9, "LTX": 9, "CogVideoX": 9, "Magvit": 9, "Mochi": 7, "Wan": 9, "QwenImage": 1,
}  # fmt: skip
"""Frames that an autoencoder takes, by what follows `AutoencoderKL`; others take images."""


def network(asked: Asked, source: str) -> Network:
    """The network `diffusers:NAME`, which takes noisy samples and time steps, or images. Raises ImporterError."""
    diffusers = library("diffusers", source)
    data = configurations.find(asked.name, source)
    kind = str(data.get("_class_name"))
    if not re.fullmatch(_KINDS, kind) or not hasattr(diffusers, kind):
        known = [n for n in dir(diffusers) if re.fullmatch(_KINDS, n)]
        raise unknown("network of diffusers that placekit can feed", kind, known, ImporterError)
    if asked.mode in ("prefill", "decode"):
        raise ImporterError(f"{kind} generates no text, so it has no mode={asked.mode}", "use mode=inference or train")
    for option, value in (("context", asked.context), ("weights", asked.weights)):
        if value is not None:
            raise ImporterError(f"{kind} has no option {option}", f"leave out {option}=")
    mode = asked.mode or "inference"
    cls = getattr(diffusers, kind)
    name = "-".join(asked.name.strip("/").split("/")[-2:])
    return Network(name, mode, lambda: _step(cls, data, asked, mode))


_KINDS = r"UNet2D\w*Model|\w+Transformer[23]DModel|(Asymmetric)?AutoencoderKL\w*|AutoencoderDC|AutoencoderTiny|VQModel"


class _Inputs:
    """Makes up the inputs of a transformer by the names of the parameters of its `forward`."""

    def __init__(self, cls: Any, config: Any, asked: Asked, dtype: torch.dtype) -> None:
        self.name, self.config, self.batch, self.dtype = cls.__name__, config, asked.batch, dtype
        self.parameters = inspect.signature(cls.forward).parameters
        size = asked.image or getattr(config, "sample_size", None) or 128
        self.height, self.width = size if isinstance(size, list | tuple) else (size, size)
        self.frames = 0
        self.depth = getattr(config, "patch_size_t", None) or 1
        if "3D" in self.name or "num_frames" in self.parameters:
            frames, height, width = _VIDEO
            self.frames = getattr(config, "video_length", frames)
            if hasattr(config, "temporal_compression_ratio"):
                self.frames = (config.sample_frames - 1) // config.temporal_compression_ratio + 1
                height, width = config.sample_height, config.sample_width
            if not isinstance(getattr(config, "sample_size", None), int):
                self.height, self.width = asked.image or height, asked.image or width
            self.frames += -self.frames % self.depth
        self.prompt = next((n for k, n in _PROMPT.items() if self.name.startswith(k)), 512)
        self.prompt = getattr(config, "max_text_seq_length", self.prompt)

    def all(self) -> dict[str, Any]:
        """All inputs, by name. Raises ImporterError if it does not know an input that the network needs."""
        found: dict[str, Any] = {"return_dict": False}
        for name, parameter in list(self.parameters.items())[1:]:
            value = self._input(name)
            if value is not None:
                found[name] = value
            elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
                raise ImporterError(
                    f"{self.name} takes {name!r}, which placekit cannot make up",
                    "write a function that returns a placekit_torch.Step, and give model=FILE.py:FUNCTION",
                )
        return found

    def _input(self, name: str) -> Any:
        """The input `name`; None if this configuration does not use it, or if placekit does not know it."""
        c, batch = self.config, self.batch
        packed = {"img_ids", "img_shapes"} & set(self.parameters)  # samples of 2 x 2 pixels each
        height, width = (self.height // 2, self.width // 2) if packed else (self.height, self.width)
        match name:
            case "hidden_states" if hasattr(c, "in_channels"):
                return self._samples(height * width if packed else 0)
            case "timestep":
                return torch.randint(0, 1000, (batch,))
            case "encoder_hidden_states" if any(widths := [getattr(c, key, None) for key in _WIDTHS]):
                return self._random(self.prompt, next(filter(None, widths)))
            case "encoder_attention_mask" | "encoder_hidden_states_mask":
                return torch.ones(batch, self.prompt, dtype=torch.bool)
            case "encoder_hidden_states_image" if getattr(c, "image_dim", None) is not None:
                pictures = 2 if getattr(c, "pos_embed_seq_len", None) else 1  # the first, or the first and the last
                return self._random(pictures * _SEEN, c.image_dim).view(-1, _SEEN, c.image_dim)
            case "image_rotary_emb" if getattr(c, "use_rotary_positional_embeddings", False):
                patches = self.frames // self.depth * (height // c.patch_size) * (width // c.patch_size)
                return tuple(torch.randn(patches, c.attention_head_dim) for _ in range(2))
            case "pooled_projections" if getattr(c, "pooled_projection_dim", None) is not None:
                return self._random(c.pooled_projection_dim)
            case "guidance" if getattr(c, "guidance_embeds", False):
                return torch.ones(batch)
            case "ofs" if getattr(c, "ofs_embed_dim", None) is not None:
                return torch.full((batch,), 2.0)
            case "img_ids" | "txt_ids":
                axes = len(getattr(c, "axes_dims_rope", (0, 0, 0)))
                return torch.zeros(height * width if name == "img_ids" else self.prompt, axes)
            case "img_shapes":
                return [[(1, height, width)]] * batch
            case "class_labels" if getattr(c, "num_embeds_ada_norm", None) is not None:
                return torch.randint(0, c.num_embeds_ada_norm, (batch,))
            case "added_cond_kwargs":
                return {"resolution": self._random(2), "aspect_ratio": self._random(1)}
            case "original_size" | "target_size":
                return torch.tensor([[8.0 * height, 8.0 * width]] * batch)
            case "crop_coords":
                return torch.zeros(batch, 2)
            case "num_frames" | "height" | "width":
                return {"num_frames": self.frames, "height": height, "width": width}[name]
        return None

    def _random(self, *shape: int) -> torch.Tensor:
        """Random numbers [batch, *shape]."""
        return torch.randn(self.batch, *shape, dtype=self.dtype)

    def _samples(self, tokens: int) -> torch.Tensor:
        """Noisy images, videos, or their tokens."""
        channels = self.config.in_channels
        if "num_frames" in self.parameters:
            tokens = self.frames * self.height * self.width
        if tokens:
            return self._random(tokens, channels)
        if self.name.startswith("CogVideoX"):
            return self._random(self.frames, channels, self.height, self.width)
        return self._random(channels, *[self.frames] * bool(self.frames), self.height, self.width)


def _step(cls: Any, data: dict[str, Any], asked: Asked, mode: Mode) -> Step:
    """One evaluation of the network, or a training step in which it learns to predict noise (mean squared error, AdamW)."""
    dtype = getattr(torch, asked.dtype or "float32")
    model = cls.from_config(data)
    torch.nn.Module.to(model, dtype)  # the class's own method prints a needless warning
    config = model.config
    if "Transformer" in cls.__name__:
        inputs = _Inputs(cls, config, asked, dtype).all()
        return Step(model, inputs) if mode == "inference" else _trained(model, inputs, inputs["hidden_states"])
    if not cls.__name__.startswith("UNet"):
        side = asked.image or getattr(config, "sample_size", None) or 256
        side = side[0] if isinstance(side, list | tuple) else side
        frames = next((n for k, n in _FRAMES.items() if cls.__name__.startswith(f"AutoencoderKL{k}")), 0)
        images = torch.randn(asked.batch, 3, *((frames,) if frames else ()), side, side, dtype=dtype)
        inputs = {"sample": images, "return_dict": False}
        return Step(model, inputs) if mode == "inference" else _trained(model, inputs, images)
    size = config.sample_size or 64
    height, width = size if isinstance(size, list | tuple) else (size, size)
    if asked.image is not None:
        height = width = asked.image
    sample = torch.randn(asked.batch, config.in_channels, height, width, dtype=dtype)
    inputs = {"sample": sample, "timestep": torch.randint(0, 1000, (asked.batch,))}
    if "encoder_hidden_states" in inspect.signature(cls.forward).parameters:
        inputs["encoder_hidden_states"] = torch.randn(asked.batch, 77, config.cross_attention_dim, dtype=dtype)
    if getattr(config, "addition_embed_type", None) == "text_time":  # Stable Diffusion XL: a whole prompt, and sizes
        width = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim
        shapes = {"text_embeds": (asked.batch, width), "time_ids": (asked.batch, 6)}
        inputs["added_cond_kwargs"] = {key: torch.zeros(shape, dtype=dtype) for key, shape in shapes.items()}
    if mode == "inference":
        return Step(model, inputs | {"return_dict": False})
    noise = torch.randn(asked.batch, config.out_channels, height, width, dtype=dtype)
    return _trained(model, inputs | {"return_dict": False}, noise)


def _trained(model: Any, inputs: dict[str, Any], target: torch.Tensor) -> Step:
    """A training step with the mean squared error of the output, or of its first channels, and AdamW."""

    def loss(output: Any, target: torch.Tensor) -> torch.Tensor:
        found = output[0]
        if found.shape != target.shape:  # a variance is learned, too, behind the noise; or a first frame is given
            same = tuple(slice(min(sizes)) for sizes in zip(found.shape, target.shape, strict=True))
            found, target = found[same], target[same]
        return torch.nn.functional.mse_loss(found, target)

    return Step(model, inputs, loss, torch.randn_like(target), lambda p: torch.optim.AdamW(p, lr=1e-4))

"""Denoising networks and autoencoders of diffusers: `diffusers:NAME`, built from a configuration, with random weights."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from placekit_torch import Step

from placekit_core import ImporterError, unknown
from placekit_models import configurations
from placekit_models.extras import library
from placekit_models.network import Mode, Network
from placekit_models.options import Asked

_TOKENS = 77
"""Tokens of a prompt that CLIP's text encoder outputs."""


def network(asked: Asked, source: str) -> Network:
    """The network `diffusers:NAME`, which takes noisy samples and time steps, or images. Raises ImporterError."""
    diffusers = library("diffusers", source)
    data = configurations.find(asked.name, source)
    kind = str(data.get("_class_name"))
    known = [n for n in dir(diffusers) if n.startswith("UNet2D") and n.endswith("Model")]
    known += [n for n in (*_INPUTS, *_AUTOENCODERS) if hasattr(diffusers, n)]
    if kind not in known:
        raise unknown("network of diffusers that placekit can feed", kind, known, ImporterError)
    if asked.mode in ("prefill", "decode"):
        raise ImporterError(f"{kind} generates no text, so it has no mode={asked.mode}", "use mode=inference or train")
    for option, value in (("context", asked.context), ("weights", asked.weights)):
        if value is not None:
            raise ImporterError(f"{kind} has no {option}", f"leave out {option}=")
    mode = asked.mode or "inference"
    cls = getattr(diffusers, kind)
    name = "-".join(asked.name.strip("/").split("/")[-2:])
    return Network(name, mode, lambda: _step(cls, data, asked, mode))


_TEXT = 512
"""Tokens of a prompt for transformers, as in the pipelines of Flux and Wan."""
_SEEN = 257
"""Tokens of a picture that CLIP's image encoder outputs: 16 x 16 patches and its class."""
_VIDEO = (13, 60, 90)
"""Frames, height and width of a compressed video, as of CogVideoX: 49 frames of 480 x 720."""
_AUTOENCODERS = {
    "AutoencoderKL": 0, "AutoencoderKLCogVideoX": 9, "AutoencoderKLHunyuanVideo": 9, "AutoencoderKLLTXVideo": 9,
    "AutoencoderKLQwenImage": 1, "AutoencoderKLWan": 9,
}  # fmt: skip
"""Autoencoders by class, and the frames that each takes; 0: it takes images."""


class _Sizes:
    """Makes up inputs of a transformer: `config`, sequences per step, and the sizes of the samples."""

    def __init__(self, config: Any, asked: Asked, dtype: torch.dtype) -> None:
        self.config, self.asked, self.batch, self.dtype = config, asked, asked.batch, dtype
        self.side = asked.image or getattr(config, "sample_size", None) or 128
        frames, height, width = _VIDEO
        self.video = (frames, asked.image or height, asked.image or width)

    def random(self, *shape: int) -> torch.Tensor:
        """Random numbers [batch, *shape]."""
        return torch.randn(self.batch, *shape, dtype=self.dtype)

    def time(self) -> torch.Tensor:
        """Random time steps [batch]."""
        return torch.randint(0, 1000, (self.batch,))

    def mask(self, tokens: int) -> torch.Tensor:
        """A mask of a prompt without padding."""
        return torch.ones(self.batch, tokens, dtype=torch.bool)

    def flux(self) -> dict[str, Any]:
        """Samples of 2 x 2 pixels each, with their positions."""
        c, tokens = self.config, (self.side // 2) ** 2
        guidance = {"guidance": torch.ones(self.batch)} if c.guidance_embeds else {}
        return {
            "hidden_states": self.random(tokens, c.in_channels),
            "encoder_hidden_states": self.random(_TEXT, c.joint_attention_dim),
            "pooled_projections": self.random(c.pooled_projection_dim), "timestep": self.time(),
            "img_ids": torch.zeros(tokens, 3), "txt_ids": torch.zeros(_TEXT, 3), **guidance,
        }  # fmt: skip

    def sd3(self) -> dict[str, Any]:
        """Images, and prompts of two CLIPs and a T5."""
        c = self.config
        return {
            "hidden_states": self.random(c.in_channels, self.side, self.side),
            "encoder_hidden_states": self.random(_TOKENS + 256, c.joint_attention_dim),
            "pooled_projections": self.random(c.pooled_projection_dim), "timestep": self.time(),
        }  # fmt: skip

    def pixart(self) -> dict[str, Any]:
        """Images of a stated resolution."""
        c = self.config
        more = {"resolution": self.random(2), "aspect_ratio": self.random(1)}
        return {
            "hidden_states": self.random(c.in_channels, self.side, self.side),
            "encoder_hidden_states": self.random(120, c.caption_channels or c.cross_attention_dim),
            "timestep": self.time(), "added_cond_kwargs": more,
        }  # fmt: skip

    def wan(self) -> dict[str, Any]:
        """Videos, and for some models what CLIP sees in their first picture, or the first and the last."""
        c = self.config
        seen = {}
        if c.image_dim:
            pictures = 2 if c.pos_embed_seq_len else 1
            seen["encoder_hidden_states_image"] = self.random(pictures * _SEEN, c.image_dim).view(
                -1, _SEEN, c.image_dim
            )
        return {
            "hidden_states": self.random(c.in_channels, *self.video), "timestep": self.time(),
            "encoder_hidden_states": self.random(_TEXT, c.text_dim), **seen,
        }  # fmt: skip

    def hunyuan(self) -> dict[str, Any]:
        """Videos, and prompts of a Llama and a CLIP."""
        c = self.config
        guidance = {"guidance": torch.ones(self.batch)} if c.guidance_embeds else {}
        return {
            "hidden_states": self.random(c.in_channels, *self.video), "timestep": self.time(),
            "encoder_hidden_states": self.random(256, c.text_embed_dim), "encoder_attention_mask": self.mask(256),
            "pooled_projections": self.random(c.pooled_projection_dim), **guidance,
        }  # fmt: skip

    def ltx(self) -> dict[str, Any]:
        """Videos as tokens."""
        c, (frames, height, width) = self.config, self.video
        return {
            "hidden_states": self.random(frames * height * width, c.in_channels),
            "encoder_hidden_states": self.random(128, c.caption_channels), "timestep": self.time(),
            "encoder_attention_mask": self.mask(128), "num_frames": frames, "height": height, "width": width,
        }  # fmt: skip

    def qwen(self) -> dict[str, Any]:
        """Samples of 2 x 2 pixels each."""
        c, side = self.config, self.side // 2
        return {
            "hidden_states": self.random(side * side, c.in_channels), "timestep": self.time(),
            "encoder_hidden_states": self.random(_TEXT, c.joint_attention_dim), "encoder_hidden_states_mask": self.mask(_TEXT),
            "img_shapes": [[(1, side, side)]] * self.batch,
        }  # fmt: skip

    def cogvideox(self) -> dict[str, Any]:
        """Videos, frame by frame, as many and as large as the configuration says; whole patches of frames."""
        c, asked, depth = self.config, self.asked.image, self.config.patch_size_t or 1
        frames = (c.sample_frames - 1) // c.temporal_compression_ratio + 1
        frames, height, width = frames + -frames % depth, asked or c.sample_height, asked or c.sample_width
        more: dict[str, Any] = {"ofs": torch.full((self.batch,), 2.0)} if c.ofs_embed_dim else {}
        if c.use_rotary_positional_embeddings:
            patches = frames // depth * (height // c.patch_size) * (width // c.patch_size)
            more["image_rotary_emb"] = tuple(torch.randn(patches, c.attention_head_dim) for _ in range(2))
        return {
            "hidden_states": self.random(frames, c.in_channels, height, width), "timestep": self.time(),
            "encoder_hidden_states": self.random(c.max_text_seq_length, c.text_embed_dim), **more,
        }  # fmt: skip


_INPUTS = {
    "FluxTransformer2DModel": _Sizes.flux, "SD3Transformer2DModel": _Sizes.sd3, "PixArtTransformer2DModel": _Sizes.pixart,
    "WanTransformer3DModel": _Sizes.wan, "HunyuanVideoTransformer3DModel": _Sizes.hunyuan,
    "LTXVideoTransformer3DModel": _Sizes.ltx, "QwenImageTransformer2DModel": _Sizes.qwen,
    "CogVideoXTransformer3DModel": _Sizes.cogvideox,
}  # fmt: skip
"""Transformers by class, and what makes up their inputs."""


def _step(cls: Any, data: dict[str, Any], asked: Asked, mode: Mode) -> Step:
    """One evaluation of the network, or a training step in which it learns to predict noise (mean squared error, AdamW)."""
    dtype = getattr(torch, asked.dtype or "float32")
    model = cls.from_config(data)
    torch.nn.Module.to(model, dtype)  # the class's own method prints a needless warning
    config = model.config
    if cls.__name__ in _INPUTS:
        inputs = _INPUTS[cls.__name__](_Sizes(config, asked, dtype)) | {"return_dict": False}
        return Step(model, inputs) if mode == "inference" else _trained(model, inputs, inputs["hidden_states"])
    if cls.__name__ in _AUTOENCODERS:
        side = asked.image or getattr(config, "sample_size", None) or 256
        frames = _AUTOENCODERS[cls.__name__]
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
        inputs["encoder_hidden_states"] = torch.randn(asked.batch, _TOKENS, config.cross_attention_dim, dtype=dtype)
    if mode == "inference":
        return Step(model, inputs | {"return_dict": False})
    noise = torch.randn(asked.batch, config.out_channels, height, width, dtype=dtype)
    return _trained(model, inputs | {"return_dict": False}, noise)


def _trained(model: Any, inputs: dict[str, Any], target: torch.Tensor) -> Step:
    """A training step with the mean squared error of the output, or of its first channels, and AdamW."""

    def loss(output: Any, target: torch.Tensor) -> torch.Tensor:
        found = output[0]
        if (
            found.shape != target.shape
        ):  # the variance, which is learned too, is behind the noise; a first frame is given
            same = tuple(slice(min(sizes)) for sizes in zip(found.shape, target.shape, strict=True))
            found, target = found[same], target[same]
        return torch.nn.functional.mse_loss(found, target)

    return Step(model, inputs, loss, torch.randn_like(target), lambda p: torch.optim.AdamW(p, lr=1e-4))

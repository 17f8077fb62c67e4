"""Options of policy `given`."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from placekit_core import Options


class GivenOptions(Options):
    """Options of policy `given`."""

    path: str | None = Field(None, description="a file with a device map, or the placement.json of a run")
    map: dict[str, Any] | None = Field(None, description="the device map itself: `{model.layers.0:0,lm_head:cpu}`")

    @field_validator("map", mode="before")
    @classmethod
    def _text_keys(cls, value: Any) -> Any:
        """`{0: 1}`, for a Sequential, has the key `0`."""
        return {str(key): device for key, device in value.items()} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _one(self) -> GivenOptions:
        if self.path is not None and self.map is not None:
            raise ValueError("give policy.path or policy.map, not both")
        return self

"""Finds the line of the user's code that an error comes from."""

from __future__ import annotations

import linecache
import os
import sysconfig
import traceback

import torch

_OURS = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(os.path.abspath(__file__)) + os.sep)
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_INSTALLED = tuple({sysconfig.get_paths()[k] + os.sep for k in ("purelib", "platlib")})


def _is_user(file: str) -> bool:
    if not os.path.isfile(file) or file.startswith(_OURS):
        return False
    return file.startswith(_INSTALLED) or not file.startswith(_STDLIB)


def first_line(error: BaseException) -> str:
    """First line of the message of an exception."""
    return (str(error).strip().splitlines() or [""])[0]


def user_line(error: BaseException) -> str:
    """`\\n  FILE:LINE: SOURCE` of the innermost frame outside torch, placekit_torch and Python's library; or ""."""
    cause: BaseException | None = error
    while cause is not None:
        for frame, line in reversed(list(traceback.walk_tb(cause.__traceback__))):
            file = frame.f_code.co_filename
            if _is_user(file):
                return f"\n  {file}:{line}: {linecache.getline(file, line).strip()}"
        cause = cause.__cause__ or cause.__context__
    return ""


def calling_line() -> str:
    """As `user_line`, but for the code that is running now."""
    for frame, line in traceback.walk_stack(None):
        if _is_user(frame.f_code.co_filename):
            return f"\n  {frame.f_code.co_filename}:{line}: {linecache.getline(frame.f_code.co_filename, line).strip()}"
    return ""

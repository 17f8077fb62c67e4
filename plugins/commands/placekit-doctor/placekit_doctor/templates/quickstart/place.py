"""The same placement from Python: place the network, print what was found, apply it.

Run it in this folder: `python place.py`.
"""

import json
from pathlib import Path

import placekit_core
from placekit_runtimes import device_map

from model import make

# 1. Place. `budget=50_000` tries more placements; the same seed gives the same result.
#    `grouper="module"` keeps modules whole, as a device map needs them.
result = placekit_core.place(make(), cluster="machine.yaml", grouper="module", seed=0)

# 2. Print. Times are in seconds, memory in bytes; `result.summary` has every number.
print(result)
for device, peak_bytes in result.summary.peak_bytes.items():
    print(f"{device}: at most {peak_bytes / 2**30:.2f} GiB at the same time")

# 3. Apply. A device map says where each module goes; accelerate takes it:
#        accelerate.dispatch_model(network, device_map=devices)
devices = device_map(result.problem, result.placement).devices
Path("device_map.json").write_text(json.dumps(devices, indent=1) + "\n")
print(f"device_map.json: {devices}")

"""Importer `torch`: factories, recipes, and what users see when something is wrong."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from placekit_testing.sequential import run_sequential
from placekit_torch import Step, TorchOptions, capture as capturing, import_module
from placekit_torch.importer import TorchImporter
from torch import Tensor, nn

from placekit_core import ClusterError, ImporterError, NothingFits, load_cluster, place
from placekit_core.run.config import conf_dir

MODEL = """
import torch
from torch import nn
from placekit_torch import Step

def step(width=4, huge=False):
    n = 300_000 if huge else width   # huge: 360 GB of weights
    module = nn.Sequential(nn.Linear(3, n), nn.ReLU(), nn.Linear(n, n if huge else 1))
    return Step(module, torch.randn(2, 3), lambda y: y.mean(), (), lambda p: torch.optim.SGD(p, lr=0.1))

def pair():
    return nn.Linear(3, 3), torch.randn(2, 3)

def wrong():
    return 42

def fails():
    raise ValueError("no such data set")

def needs():
    import a_package_nobody_has

def half():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    return Step(module.to(torch.float16), torch.randn(2, 3).half(), lambda y: y.float().sum())

number = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "users_model.py").write_text(MODEL)
    return tmp_path


def load(folder: Path, factory: str = "users_model:step", **options: Any) -> Any:
    return TorchImporter(module=factory, path=str(folder), **options).load()[0]


def test_factory_with_arguments_and_recipe(folder: Path) -> None:
    program = load(folder, arguments={"width": 6}, seed=3)
    assert program.graph.name == "users_model.step"
    assert program.graph.shape(0) == (6, 3)
    recipe = program.executable.recipe
    assert recipe["importer"] == "torch"
    again = TorchImporter(TorchOptions.model_validate(recipe["options"])).load()[0]
    assert again.graph.fingerprint == program.graph.fingerprint
    one, two, other = program.executable.initial(), again.executable.initial(3), program.executable.initial(4)
    assert all(torch.equal(one[t], two[t]) for t in one)
    assert not torch.equal(one[0], other[0])
    _, results = run_sequential(program, one)
    assert results["loss"].shape == ()


def test_current_folder_is_searched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert TorchImporter(module="users_model:step").load()[0].graph.n > 4


def test_models_of_one_name_in_two_folders(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "users_model.py").write_text(MODEL.replace("width=4", "width=9"))
    assert [load(f).graph.shape(0) for f in (folder, other, folder)] == [(4, 3), (9, 3), (4, 3)]


def test_nothing_is_allocated(folder: Path) -> None:
    program = load(folder, arguments={"huge": True})
    assert program.graph.persistent_bytes.sum() > 300e9


def test_inference_of_a_pair(folder: Path) -> None:
    program = load(folder, "users_model:pair", mode="inference")
    assert list(program.executable.results) == ["output.0"]


def test_half_precision(folder: Path) -> None:
    graph = load(folder, "users_model:half").graph
    assert "float16" in graph.dtype.vocabulary
    assert graph.persistent_bytes.sum() == 2 * (9 + 3 + 3 + 6)  # the tied weight once


def test_wrong_factories(folder: Path) -> None:
    wrong: list[tuple[str, dict[str, Any], list[str]]] = [
        ("", {}, ["importer.module is not set", "package.module:function"]),
        ("users_model", {}, ["importer.module is 'users_model'"]),
        ("no_such_module:step", {}, ["no module named 'no_such_module'", "looked in"]),
        ("users_model:stop", {}, ["no attribute of 'users_model' named 'stop'", "did you mean 'step'"]),
        ("users_model:number", {}, ["is a int, not a function"]),
        ("users_model:wrong", {}, ["users_model:wrong returned int", "return Step("]),
        ("users_model:fails", {}, ["ValueError: no such data set", "users_model.py:", "raise ValueError"]),
        ("users_model:needs", {}, ["users_model:needs failed", "No module named 'a_package_nobody_has'"]),
        ("users_model:step", {"arguments": {"depth": 1}}, ["unexpected keyword argument 'depth'"]),
        ("users_model:pair", {}, ["has no scalar loss: the module returns a tensor of shape (2, 3)", "Step.loss"]),
    ]
    for factory, options, says in wrong:
        with pytest.raises(ImporterError) as error:
            load(folder, factory, **options)
        for text in says:
            assert text in str(error.value)


def test_broken_module_and_missing_folder(folder: Path) -> None:
    (folder / "broken_model.py").write_text("import a_package_nobody_has\n")
    with pytest.raises(ImporterError, match=r"(?s)needs 'a_package_nobody_has'.*broken_model\.py:1"):
        load(folder, "broken_model:step")
    (folder / "invalid_model.py").write_text("def step(:\n")
    with pytest.raises(ImporterError, match="'invalid_model' cannot be imported: SyntaxError"):
        load(folder, "invalid_model:step")
    with pytest.raises(ImporterError, match="not a folder"):
        load(folder / "nowhere")


class Item(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.sum().item()


class Nonzero(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nonzero(x).float()


class Shapes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x @ x


@pytest.mark.parametrize(
    ("module", "line", "why"),
    [
        (Item, "return x * x.sum().item()", "depends on the data"),
        (Nonzero, "return torch.nonzero(x).float()", "shape of a result depends on data"),
        (Shapes, "return x @ x", "RuntimeError"),
    ],
)
def test_untraceable_modules_name_the_line(module: type[nn.Module], line: str, why: str) -> None:
    wrapped = nn.Sequential(nn.Linear(3, 3), module())
    number = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.strip() == line)
    with pytest.raises(ImporterError) as error:
        import_module(wrapped, torch.randn(2, 3), loss=lambda y: y.sum(), name="mine")
    assert error.value.message.startswith("mine cannot be traced: ")
    assert why in error.value.message
    assert f"{__file__}:{number}: {line}" in error.value.message
    assert error.value.hint


def linear(**options: Any) -> Any:
    options = {"loss": lambda y: y.sum(), **options}
    return import_module(nn.Linear(3, 3), torch.randn(2, 3), name="mine", **options)


def test_wrong_steps() -> None:
    wrong: list[tuple[dict[str, Any], list[str]]] = [
        ({"optimizer": torch.optim.LBFGS}, ["the update of LBFGS", "closure"]),
        ({"optimizer": torch.optim.SGD([torch.zeros(1)])}, ["optimizer of this step is not callable"]),
        ({"optimizer": lambda p: torch.optim.SGD(p, lr=-1)}, ["Invalid learning rate"]),
        ({"optimizer": lambda p: torch.optim.SGD([torch.zeros(3)], lr=1)}, ["not a parameter of the module"]),
        ({"loss": lambda y: y}, ["the loss is a tensor of shape (2, 3)"]),
        ({"loss": lambda y: 3.0}, ["the loss is a float"]),
        ({"loss": lambda y: y.detach().sum()}, ["depends on no parameter"]),
        ({"loss": lambda y, t: y.sum()}, ["missing 1 required positional argument", "give targets=..."]),
    ]
    for options, says in wrong:
        with pytest.raises(ImporterError) as error:
            linear(**options)
        for text in says:
            assert text in str(error.value)


LOGGER = logging.getLogger("torch._subclasses.fake_tensor")


def test_torch_logs_nothing_of_an_error() -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    filters = list(LOGGER.filters)
    LOGGER.addHandler(handler)
    try:
        with pytest.raises(ImporterError, match="mine cannot be traced"):
            import_module(nn.Linear(3, 3), torch.randn(2, 4), loss=lambda y: y.sum(), name="mine")
        assert not records
        LOGGER.error("restored")
        assert len(records) == 1
    finally:
        LOGGER.removeHandler(handler)
    assert LOGGER.filters == filters


def test_changing_a_parameter_in_the_forward_pass() -> None:
    class Clamped(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.weight.clamp_(-1, 1)
            return super().forward(x)

    module, x = Clamped(3, 3), torch.randn(2, 3)
    with torch.no_grad():
        module.weight.mul_(9)
    program = import_module(module, x, loss=lambda y: y.square().sum(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    assert program.executable is not None
    after, _ = run_sequential(program, program.executable.initial())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module(x).square().sum().backward()
    optimizer.step()
    [weight] = program.graph.outputs(program.graph.op_name.index("weight"))
    torch.testing.assert_close(after[weight], module.weight.detach())
    tied = nn.Sequential(Clamped(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    with pytest.raises(ImporterError, match="are one tensor, which the forward pass changes"):
        import_module(tied, x, loss=lambda y: y.sum())


def test_lazy_modules_and_things_that_are_no_modules() -> None:
    with pytest.raises(
        ImporterError, match=r"batch normalisation has one value per channel.*\n(.*\n)*  train with .* batch=2"
    ):
        import_module(torch.nn.BatchNorm1d(3), torch.zeros(1, 3), loss=torch.sum, optimizer=torch.optim.SGD)
    with pytest.raises(ImporterError, match="has no shape yet"):
        import_module(nn.LazyLinear(3), torch.randn(2, 3), mode="inference")
    with pytest.raises(ImporterError, match=r"is a function, not a torch\.nn\.Module"):
        import_module(lambda x: x, torch.randn(2, 3))


def test_unknown_modes_are_refused() -> None:
    with pytest.raises(ImporterError, match=r"no mode named 'eval'\n  available: inference, train"):
        import_module(nn.Linear(3, 3), torch.randn(2, 3), mode="eval")  # type: ignore[arg-type]


def test_values_need_a_real_module() -> None:
    with torch.device("meta"):
        module = nn.Linear(3, 3)
    program = import_module(module, torch.randn(2, 3), mode="inference")
    with pytest.raises(ImporterError, match=r"parameter 'weight' was imported.*now there is.*on meta"):
        program.executable.initial()


class OneDict(nn.Linear):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward(batch["x"])


def test_a_dict_that_is_one_argument() -> None:
    inputs = {"x": torch.randn(2, 3)}
    with pytest.raises(ImporterError, match=r"OneDict\.forward\(batch\) does not take the inputs") as error:
        import_module(OneDict(3, 3), inputs, mode="inference")
    assert "(x) is keyword arguments" in error.value.hint
    assert "(module, (dict,))" in error.value.hint
    import_module(OneDict(3, 3), (inputs,), mode="inference")


def test_modules_that_their_model_wants_whole() -> None:
    class Net(torch.nn.Sequential):
        _no_split_modules = ("GELU", "Other")

    program = import_module(Net(torch.nn.Linear(4, 4), torch.nn.GELU()), torch.ones(2, 4), mode="inference")
    assert program.graph.attributes["unsplit"] == ["1"]
    plain = import_module(torch.nn.Sequential(torch.nn.GELU()), torch.ones(2, 4), mode="inference")
    assert "unsplit" not in plain.graph.attributes


def test_children_without_parameters_and_buffers() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.drop = torch.nn.Linear(4, 4), torch.nn.Dropout(0.0)
            self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.GELU()])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.drop(self.embed(x))
            for layer in self.layers:
                x = layer(x)
            return x

    graph = import_module(Net(), torch.ones(2, 4), mode="inference").graph
    assert graph.attributes["stateless"] == ["drop", "layers.1"]


def test_weights_that_do_not_fit_end_the_run_before_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network of hundreds of billions of parameters takes minutes to trace."""
    monkeypatch.setattr(capturing, "trace_joint", lambda *args, **more: pytest.fail("it is traced"))
    n = 90_000
    module = nn.Sequential(*(nn.Linear(n, n, device="meta") for _ in range(3)))
    cluster = load_cluster(conf_dir() / "cluster" / "p100x4.yaml")
    for mode in ("train", "inference"):
        with pytest.raises(ClusterError) as caught:
            place(Step(module, torch.ones(1, n, device="meta")), mode=mode, cluster=cluster)
        assert "parameters and buffers alone take 90.53 GiB, all devices together have" in caught.value.message
    monkeypatch.undo()
    module[1].weight = module[2].weight = module[0].weight  # shared weights count once
    with pytest.raises(NothingFits):
        place(
            Step(module, torch.ones(1, n, device="meta")), mode="inference", cluster=cluster, policy="random", budget=1
        )

"""Set-ups larger than a paper's, to see how planning grows: more regions, more models, no two quite alike."""

from dataclasses import replace

from schemas.catalog import Catalog, ListPrice, Model
from schemas.catalog import Setup as PaperSetup
from solver.building import inputs_of
from solver.kept import Kept
from solver.library import Header, Library, Part
from solver.setups import Setup
from solver.snapshots import draw

PRICES, THROUGHPUTS = 0.1, 0.2
"""How much a copy differs at most, either way: a node's price in a region, what a model's templates give."""


def more_regions(setup: Setup, times: int, requests: int) -> Setup:
    """The same with every region so many times, each copy with prices of its own, and the requests so many
    times: as many times as the regions, a place has as much stock as before; once, so many times less.
    """
    copies = range(2, times + 1)
    prices = [
        _price(price, copy)
        for copy in copies
        for price in setup.catalog.prices
        if f"{price.cloud}/{price.region}" in setup.regions
    ]
    setups = tuple(
        s.model_copy(update={"requests_per_s": s.requests_per_s * requests}) if s.name == setup.name else s
        for s in setup.catalog.setups
    )
    catalog = setup.catalog.model_copy(update={"prices": (*setup.catalog.prices, *prices), "setups": setups})
    regions = (*setup.regions, *(_named(region, copy) for copy in copies for region in setup.regions))
    return replace(setup, catalog=catalog, regions=regions)


def more_models(setup: Setup, library: Library, times: int) -> tuple[Setup, Library]:
    """The same with every model so many times. A copy has the first one's demand and templates, which give
    something else.

    Raises:
        ValueError: the library was opened without figures.
    """
    if library.figures is None:
        raise ValueError("library: opened without the catalog that it was built from")
    copies = range(2, times + 1)
    catalog = _with_models(setup.catalog, setup.name, copies)
    figures = library.figures._replace(catalog=catalog)
    levels = [(_named(model, copy), level) for copy in copies for model, level in setup.scope.levels]
    variants = {
        _named(model, copy): names for copy in copies for model, names in setup.scope.variants.items()
    }
    scope = replace(
        setup.scope,
        levels=(*setup.scope.levels, *levels),
        variants={**setup.scope.variants, **variants},
    )
    named = list(zip(library.header.parts, library.arrays, strict=True))
    shelves = [*named, *(_copied(part, kept, copy) for copy in copies for part, kept in named)]
    header = Header(inputs=inputs_of(figures, scope), parts=tuple(part for part, _ in shelves))
    return replace(setup, catalog=catalog, scope=scope), Library(
        header, tuple(kept for _, kept in shelves), figures
    )


# ------------------------------------------------------------------------------------------------- helpers


def _named(name: str, copy: int) -> str:
    return f"{name}-copy{copy}"


def _price(price: ListPrice, copy: int) -> ListPrice:
    region = _named(price.region, copy)
    dearer = 1 + PRICES * (2 * draw(copy, "price", price.cloud, region, price.configuration) - 1)
    return price.model_copy(update={"region": region, "usd_per_hour": price.usd_per_hour * dearer})


def _copied(part: Part, kept: Kept, copy: int) -> tuple[Part, Kept]:
    key = part.key._replace(model=_named(part.key.model, copy))
    gives = 1 + THROUGHPUTS * (2 * draw(copy, "gives", *key) - 1)
    return part.model_copy(update={"key": key}), replace(kept, throughput=kept.throughput * gives)


def _with_models(catalog: Catalog, setup: str, copies: range) -> Catalog:
    """The catalog with copies of the models, and the set-up of that name with all of them."""
    models = (*catalog.models, *(_model(model, copy) for copy in copies for model in catalog.models))
    setups = tuple(_wider(s, copies) if s.name == setup else s for s in catalog.setups)
    return catalog.model_copy(update={"models": models, "setups": setups})


def _model(model: Model, copy: int) -> Model:
    return model.model_copy(update={"name": _named(model.name, copy)})


def _wider(setup: PaperSetup, copies: range) -> PaperSetup:
    names = (*setup.models, *(_named(name, copy) for copy in copies for name in setup.models))
    return setup.model_copy(update={"models": names})

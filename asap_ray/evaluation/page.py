"""How our HTML pages look."""

from __future__ import annotations

from typing import Final

STYLE: Final = """\
  body { font: 16px/1.5 system-ui, sans-serif; color: #1d2b45; background: #fff; max-width: 60rem;
         margin: 2rem auto; padding: 0 1rem; }
  h1 { font-size: 1.6rem; margin-bottom: .2rem; }
  h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; }
  .facts { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 1rem 0; }
  .facts dt { color: #5b6882; }
  .facts dd { margin: 0; overflow-wrap: anywhere; }
  .tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0; }
  .tile { flex: 1 1 8rem; border: 1px solid #dde2eb; border-radius: .5rem; padding: .6rem .9rem; }
  .tile b { display: block; font-size: 1.5rem; line-height: 1.3; white-space: nowrap; }
  .tile span { color: #5b6882; font-size: .85rem; }
  .scroll { overflow-x: auto; }
  table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
  th, td { text-align: right; padding: .3rem .5rem; border-bottom: 1px solid #e6e9ef; white-space: nowrap; }
  th { color: #5b6882; font-weight: 600; }
  tr.all td { font-weight: 600; border-top: 2px solid #c3cad8; }
  figure { margin: 0; }
  figure svg { width: 100%; height: auto; }
  figcaption, .note { color: #5b6882; font-size: .9rem; }
  .error { color: #c1121f; }
  code { background: #f1f3f7; padding: .1rem .3rem; border-radius: .2rem; }
"""

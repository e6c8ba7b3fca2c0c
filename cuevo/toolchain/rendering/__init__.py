"""A template, its values and its parameter struct to the lines of PTX text, by Jinja.

`lines` renders, and says where in the templates an error is; `language` is how a template becomes
code, which `source_map` gives marks for the origins of lines, and `free_names` examines;
`codes` keeps it, and has what a wheel brings along; `names` is what every template sees.

The language itself is described in `cuevo.toolchain.template`. Only what renders imports this:
Jinja takes longer than a first call whose kernels are in the cache.
"""

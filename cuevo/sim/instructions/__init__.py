"""The instruction set. ``forms.txt`` is the table of forms that are supported, which `table` reads;
each module binds the forms of one family: their operands, once, to a step that runs them.
"""

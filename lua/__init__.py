"""The Lua scripts of the wire; a package so that they travel in the wheel."""

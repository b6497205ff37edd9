"""How turns are written down: the JSON form, its detached form for stores, and NOOA's compact form. Pure: no I/O."""

"""Right results, by the specification; and conventions: a table, their values in a function, and its formula."""

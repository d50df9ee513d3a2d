"""Right results, by the specification; and conventions: a table, the form of a function, and its formula."""

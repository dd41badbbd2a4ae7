copy (select id, sample as number, trim(text) as title, document from 'out/recipes/best_of/titles/data/*.parquet' order by all)
to 'out/recipes/best_of/candidates.parquet';

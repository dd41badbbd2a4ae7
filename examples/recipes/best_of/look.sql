select best.id, best.title, round(best.logprob, 1) as logprob, list(title order by number) as of
from 'out/recipes/best_of/best.parquet' best join 'out/recipes/best_of/candidates.parquet' all_ using (id)
group by all order by best.id limit 4;

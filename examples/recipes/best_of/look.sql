create view best as select * from 'out/recipes/best_of/best.parquet';
create view titles as select id, number, title, logprob from 'out/recipes/best_of/scores/data/*.parquet';
select best.id, best.title, list(titles.title order by titles.number) as of
from best join titles using (id) group by all order by best.id limit 4;
-- By how many nats its text is likelier behind the best title than behind one of the four on average.
select count(*) as texts, round(avg(best.logprob - four.mean), 1) as nats_gained
from best join (select id, avg(logprob) as mean from titles group by id) four using (id);

create view calls as select id, meant, tool_calls[1].name as name, tool_calls[1].arguments as arguments
from 'out/recipes/tools/data/*.parquet';
select id, name, arguments from calls order by id limit 4;
select count(*) filter (name = meant) as right_tools, count(*) as calls from calls;

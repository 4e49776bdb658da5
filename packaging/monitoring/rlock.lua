-- What redis_exporter reads of rlock: `redis_exporter -script rlock.lua`. Of a module's section of INFO the exporter itself takes only
-- the names that it knows. On a server without the module this answers nothing.
local values = {}
for name, value in string.gmatch(redis.call('INFO', 'rlock'), '(rlock_[%w_]+):(%d+)') do
    values[#values + 1] = name
    values[#values + 1] = value
end
return values

-- Returns the fields of INFO rlock for redis_exporter: `redis_exporter -script rlock.lua`. Without
-- the script, the exporter takes only the names that it knows from a module's section of INFO. On a
-- server without the module the script returns nothing.
local values = {}
for name, value in string.gmatch(redis.call('INFO', 'rlock'), '(rlock_[%w_]+):(%d+)') do
    values[#values + 1] = name
    values[#values + 1] = value
end
return values

import { drivers } from './drivers.mjs'
import { faults } from './faults.mjs'

for (const driver of drivers) if (!driver.isIoredis && !driver.name.includes('RESP')) faults(driver)

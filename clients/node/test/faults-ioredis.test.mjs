import { drivers } from './drivers.mjs'
import { faults } from './faults.mjs'

for (const driver of drivers) if (driver.isIoredis) faults(driver)

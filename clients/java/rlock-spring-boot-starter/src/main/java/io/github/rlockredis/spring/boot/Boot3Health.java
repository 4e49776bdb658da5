package io.github.rlockredis.spring.boot;

import io.github.rlockredis.RLockClient;
import org.springframework.boot.actuate.autoconfigure.health.ConditionalOnEnabledHealthIndicator;
import org.springframework.boot.actuate.health.AbstractHealthIndicator;
import org.springframework.boot.actuate.health.Health;
import org.springframework.boot.actuate.health.HealthIndicator;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;

/** The health indicator with the types of Spring Boot 3. */
@Configuration(proxyBeanMethods = false)
@ConditionalOnClass({HealthIndicator.class, ConditionalOnEnabledHealthIndicator.class})
@ConditionalOnEnabledHealthIndicator("rlock")
class Boot3Health {
    @Bean
    HealthIndicator rlockHealthIndicator(RLockClient client) {
        return new Indicator(new HealthCheck(client));
    }

    private static final class Indicator extends AbstractHealthIndicator {
        private final HealthCheck check;

        Indicator(HealthCheck check) {
            super(HealthCheck.FAILED);
            this.check = check;
        }

        @Override
        protected void doHealthCheck(Health.Builder builder) throws Exception {
            builder.up().withDetails(check.run());
        }
    }
}

package io.github.rlockredis.spring.boot;

import io.github.rlockredis.RLockClient;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.health.autoconfigure.contributor.ConditionalOnEnabledHealthIndicator;
import org.springframework.boot.health.contributor.AbstractHealthIndicator;
import org.springframework.boot.health.contributor.Health;
import org.springframework.boot.health.contributor.HealthIndicator;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;

/** The health indicator with the types of Spring Boot 4. */
@Configuration(proxyBeanMethods = false)
@ConditionalOnClass({HealthIndicator.class, ConditionalOnEnabledHealthIndicator.class})
@ConditionalOnEnabledHealthIndicator("rlock")
class Boot4Health {
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

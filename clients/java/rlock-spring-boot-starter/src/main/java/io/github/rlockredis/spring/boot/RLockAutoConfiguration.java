package io.github.rlockredis.spring.boot;

import io.github.rlockredis.RLockClient;
import io.lettuce.core.RedisClient;
import io.lettuce.core.cluster.RedisClusterClient;
import io.micrometer.core.instrument.MeterRegistry;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.beans.factory.config.BeanDefinition;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;
import org.springframework.context.annotation.Role;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;

/** An {@link RLockClient} on the Lettuce client of {@code spring.data.redis.*}, and what uses it. */
@AutoConfiguration(
        afterName = {
            // Spring Boot 3.
            "org.springframework.boot.autoconfigure.data.redis.RedisAutoConfiguration",
            "org.springframework.boot.actuate.autoconfigure.metrics.CompositeMeterRegistryAutoConfiguration",
            "org.springframework.boot.actuate.autoconfigure.metrics.export.simple.SimpleMetricsExportAutoConfiguration",
            // Spring Boot 4.
            "org.springframework.boot.data.redis.autoconfigure.DataRedisAutoConfiguration",
            "org.springframework.boot.micrometer.metrics.autoconfigure.CompositeMeterRegistryAutoConfiguration",
            "org.springframework.boot.micrometer.metrics.autoconfigure.export.simple.SimpleMetricsExportAutoConfiguration"
        })
@Import({Boot3Health.class, Boot4Health.class})
@ConditionalOnClass(LettuceConnectionFactory.class)
@ConditionalOnBean(LettuceConnectionFactory.class)
@ConditionalOnProperty(name = "rlock.enabled", matchIfMissing = true)
@EnableConfigurationProperties(RLockProperties.class)
public class RLockAutoConfiguration {
    /** For the container. */
    public RLockAutoConfiguration() {}

    @Bean
    @ConditionalOnMissingBean
    RLockClient rlockClient(
            LettuceConnectionFactory connections, RLockProperties properties, ObjectProvider<LockMetrics> metrics) {
        var builder = connections.getRequiredNativeClient() instanceof RedisClusterClient cluster
                ? RLockClient.builder(cluster)
                : RLockClient.builder((RedisClient) connections.getRequiredNativeClient());
        return builder.keyPrefix(properties.keyPrefix())
                .defaults(properties.options())
                .onLost(hold -> metrics.ifAvailable(it -> it.lost(hold)))
                .build();
    }

    @Bean
    RLockLifecycle rlockLifecycle(RLockClient client, LettuceConnectionFactory connections) {
        return new RLockLifecycle(client, connections);
    }

    // A post-processor must not make other beans early, so it takes providers.
    @Bean
    @Role(BeanDefinition.ROLE_INFRASTRUCTURE)
    static DistributedLockPostProcessor distributedLockPostProcessor(
            ObjectProvider<RLockClient> client,
            ObjectProvider<RLockProperties> properties,
            ObjectProvider<LockMetrics> metrics) {
        return new DistributedLockPostProcessor(new DistributedLockInterceptor(client, properties, metrics));
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(MeterRegistry.class)
    static class Metrics {
        @Bean
        @ConditionalOnBean(MeterRegistry.class)
        LockMetrics rlockMetrics(MeterRegistry registry) {
            return new MicrometerLockMetrics(registry);
        }
    }
}
